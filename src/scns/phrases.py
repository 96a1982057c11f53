"""Numbers in sentences."""


def count(number: int, what: str) -> str:
    """`3 runs`, `1 run`."""
    return f"{number:,} {what}{'s' * (number != 1)}"
