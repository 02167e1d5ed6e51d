"""AgentCard documents (draft-aevum-agentcard-00): validated, built for this daemon, versioned. Pure: no I/O here."""
