"""`scns models`: the networks and their sizes."""


def table() -> None:
    """List the networks: parameters, MFLOPs, embedding width."""
