"""Confinement: which files, devices and system calls a daemon may use, and how the kernel enforces it (draft §12).

`plan` decides, `enforce` puts a plan in force and reports what is. The rest are the means: `landlock`, `seccomp`,
`identity`. `cage` does the same for the programs of `proc.exec`.
"""
