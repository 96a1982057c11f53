"use strict";
// Without this script the page is complete; with it tables sort, the runs filter, and curves can be read off.

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((each) => each.hasAttribute("aria-sort") && each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [row.cells[column].dataset.value ?? "", row]);
      keyed.sort(([one], [other]) => {
        if (one === "" || other === "") return (one === "") - (other === ""); // what is missing comes last
        const difference = Number(one) - Number(other);
        const order = Number.isNaN(difference) ? one.localeCompare(other, "en", { numeric: true }) : difference;
        return rising ? order : -order;
      });
      body.append(...keyed.map(([, row]) => row));
      table.parentNode.scrollTop = 0;
    });
  });
}

function filterable(box) {
  const table = document.getElementById(box.getAttribute("aria-controls")), rows = [...table.tBodies[0].rows];
  const count = document.getElementById(box.id + "-count");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    table.parentNode.scrollTop = 0;
    count.textContent = `${shown} of ${rows.length} runs`;
  });
}

function readable(figure) {
  const svg = figure.querySelector("svg.plot"), tip = figure.querySelector(".tip"), hint = tip.textContent;
  const cross = svg.querySelector(".cross"), dot = svg.querySelector(".dot");
  const curves = [...svg.querySelectorAll(".curve")].map((path) => ({
    path,
    name: path.dataset.name,
    points: path.dataset.points.split(" ").map((point) => point.split(":").map(Number)), // epoch, accuracy, x, y
  }));
  let which = 0, place = -1;
  const visible = () => curves.filter((curve) => !curve.path.hasAttribute("hidden"));

  function show(curve, index) {
    const [epoch, accuracy, x, y] = curve.points[index];
    curves.forEach((each) => each.path.classList.toggle("near", each === curve));
    cross.setAttribute("x1", x); cross.setAttribute("x2", x);
    dot.setAttribute("cx", x); dot.setAttribute("cy", y);
    dot.style.fill = getComputedStyle(curve.path).stroke;
    cross.style.visibility = dot.style.visibility = "visible";
    tip.textContent = `${curve.name}: ${accuracy.toFixed(2)} % ${figure.dataset.told.replace("#", epoch)}`;
  }
  function hide() {
    curves.forEach((each) => each.path.classList.remove("near"));
    cross.style.visibility = dot.style.visibility = "hidden";
    tip.textContent = hint;
  }
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null, least = Infinity;
    for (const curve of visible()) {
      curve.points.forEach(([, , x, y], index) => {
        const distance = 16 * (x - at.x) ** 2 + (y - at.y) ** 2; // the epoch decides first
        if (distance < least) { least = distance; best = [curve, index]; }
      });
    }
    if (best) show(...best);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const there = visible(), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
    const turn = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    if (!there.length || (!step && !turn)) return;
    event.preventDefault();
    which = (which + turn + there.length) % there.length;
    const last = there[which].points.length - 1;
    place = place < 0 ? last : Math.min(last, Math.max(0, place + step));
    show(there[which], place);
  });
  figure.querySelectorAll(".legend input").forEach((box, index) => {
    box.addEventListener("change", () => curves[index].path.toggleAttribute("hidden", !box.checked));
  });
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
}

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll(".filter input").forEach(filterable);
document.querySelectorAll("figure.chart").forEach(readable);
window.addEventListener("hashchange", openTarget);
openTarget();
