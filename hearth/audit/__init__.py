"""The audit log: records, the hash chain over them, signed checkpoints, the files, and their verification.

Pure of actors and clocks: the time is an argument. `hearth.actors.journal` writes the log, `hearth audit` reads it.
Only the settings are imported here.
"""

from hearth.audit.log import DURABILITIES as DURABILITIES, AuditSettings as AuditSettings, Durability as Durability
