"""LIFE: everything that runs concurrently. Imported as `hearth.actors`."""

if __name__ != "hearth.actors":
    raise ImportError("this folder is imported as `hearth.actors`; install the project: `pip install -e .`")
