"""Which maps of the student go with which of the teacher, checked when a method is built."""

from scns.errors import InputError
from scns.features import Shapes
from scns.methods import Setting, paired

Map = tuple[int, int, int]  # channels, height, width


def teacher_shapes(setting: Setting) -> Shapes:
    """The teacher's shapes; `Method` has refused a setting without teacher already."""
    assert setting.teacher is not None
    return setting.teacher


def stage_pairs(setting: Setting, pair: str) -> list[tuple[Map, Map]]:
    """The sizes of the two maps of every pair of stages."""
    student, teacher = _maps(setting)
    return list(paired(student[1:], teacher[1:], pair, "stages"))


def equal_stages(setting: Setting, method: str) -> list[tuple[Map, Map]]:
    """The sizes of the two maps of every stage, for a method that cannot leave one out."""
    student, teacher = _maps(setting)
    if len(student) != len(teacher):
        raise InputError(
            f"'{method}' needs as many stages in both networks, but the student has {list(student[1:])} and the "
            f"teacher {list(teacher[1:])}; choose another teacher, or 'at', which can leave stages out."
        )
    return list(zip(student[1:], teacher[1:], strict=True))


def equal_channels(setting: Setting, method: str) -> None:
    """Refuses networks whose maps, the stem's included, differ in number or channels."""
    student, teacher = ([size[0] for size in maps] for maps in _maps(setting))
    if student != teacher:
        raise InputError(
            f"'{method}' needs the same channels in both networks, but the student's maps have {student} and the "
            f"teacher's {teacher}; choose another teacher, or 'at', which compares any channels."
        )


def _maps(setting: Setting) -> tuple[tuple[Map, ...], tuple[Map, ...]]:
    shapes = {"student": setting.student, "teacher": teacher_shapes(setting)}
    for who, each in shapes.items():
        if len(each.maps) < 2:
            raise InputError(
                f"The {who} shows {len(each.maps)} feature maps, but a stem and a stage are needed; use a network of "
                "scns.models, or name its layers with scns.models.features_of."
            )
    return setting.student.maps, shapes["teacher"].maps
