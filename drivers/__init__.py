"""Drivers: the code that accesses hardware and the machine. Imported as `hearth.drivers`; knows no actor."""

if __name__ != "hearth.drivers":
    raise ImportError("this folder is imported as `hearth.drivers`; install the project: `pip install -e .`")
