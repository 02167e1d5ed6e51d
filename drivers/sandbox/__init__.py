"""Confinement: what a daemon may reach, and how the kernel is asked to hold it to that (draft §12).

`plan` decides, `confine` puts in force and tells what is. The rest are the means: `landlock`, `seccomp`, `identity`.
"""
