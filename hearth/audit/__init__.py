"""The audit log: records, the hash chain over them, signed checkpoints, the files, and their verification.

Pure of actors and clocks: the time is an argument. `hearth.actors.journal` is the one that writes, `hearth
audit` the one that reads. Only the settings are imported here; the modules have the rest.
"""

from hearth.audit.log import DURABILITIES as DURABILITIES, AuditSettings as AuditSettings, Durability as Durability
