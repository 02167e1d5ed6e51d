"""AgentCard documents (draft-aevum-agentcard-00): validated, built for this daemon, versioned.

Pure, but for `fetch`, which gets one over HTTP.
"""
