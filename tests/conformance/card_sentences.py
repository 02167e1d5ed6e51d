"""What the AgentCard draft asks for, sentence by sentence.

A copy (of draft-aevum-agentcard-00), in the form of `sentences.py`, with "card " before the section. The rules of its
section 5 are there once for each rule.
"""

from __future__ import annotations

from conformance.reading import read

CARD = read(
    """
# 1 Introduction
card 1.1 | MUST | An AgentCard produced by a LangChain tool MUST be interpretable by an AutoGen registry and vice
    versa.
card 1.1 | is | The format imposes no dependency on any specific agent framework.
card 1.1 | is | AgentCard is a pure data schema. It describes what an agent can do and how to reach it; it does not
    specify how the agent processes requests.
card 1.1 | MUST | Agent identities MUST be globally unique without requiring a central registration authority.
card 1.1 | MAY | New fields MAY be added to future versions of AgentCard.
card 1.1 | MUST | Readers MUST ignore unknown fields.
card 1.1 | is | The metadata object provides a namespaced extension point for framework- and application- specific
    annotations.

# 2 The AgentCard data model
card 2 | REQUIRED | The fields agent_id, name, version, capabilities, and endpoint are REQUIRED.
card 2 | OPTIONAL | All other fields are OPTIONAL.
card 2.1 | is | Exactly 26 characters.
card 2.1 | MUST | Each character MUST be a member of the Crockford Base32 alphabet: digits 0–9 and uppercase letters A–Z
    excluding I, L, O, and U.
card 2.1 | MUST | An agent MUST generate its agent_id using a cryptographically secure random number generator for the
    random component of the ULID.
card 2.1 | PROHIBITED | Predictable or sequential random components are PROHIBITED.
card 2.2 | MUST NOT | 1 to 128 Unicode code points. MUST NOT be empty.
card 2.2 | SHOULD | The name field is intended for presentation purposes and SHOULD reflect the agent's primary function
    or role.
card 2.3 | MUST | MUST conform to Semantic Versioning 2.0.0 [SEMVER].
card 2.3 | SHOULD | Implementations SHOULD increment the PATCH component when reissuing an AgentCard with corrected
    metadata.
card 2.3 | SHOULD | They SHOULD increment the MINOR component when new capabilities are added in a backward-compatible
    manner.
card 2.3 | SHOULD | They SHOULD increment the MAJOR component when capabilities are removed or endpoint URLs change
    incompatibly.
card 2.4 | MUST | MUST contain at least one entry.
card 2.4 | SHOULD | Entries SHOULD be ordered from most prominent to least prominent capability.
card 2.4.1 | MUST | The identifier MUST begin with a lowercase letter or digit.
card 2.4.1 | MAY | Subsequent characters MAY be lowercase letters, digits, dots, underscores, or hyphens.
card 2.4.1 | SHOULD | Implementations SHOULD use the conventional namespaces above.
card 2.4.1 | MAY | Private or experimental namespaces MAY use a reverse-domain prefix (e.g.,
    com.example.custom_capability).
card 2.4.1 | is | The capabilities[].id is designed to be compatible with the name field of an OpenAI-style function
    schema and the name field of an MCP tool definition, enabling zero-conversion interoperability.
card 2.4.2 | is | A human-readable description of the capability for use in LLM prompts, API documentation, and agent
    discovery UIs.
card 2.4.2 | SHOULD | Implementations SHOULD provide this field.
card 2.4.2 | SHOULD | The description SHOULD be one to three sentences that describe what the capability does, what
    inputs it accepts, and what it returns.
card 2.4.3 | is | Optional JSON Schema objects describing the expected input parameters and output structure of the
    capability.
card 2.4.3 | MUST | When provided, these schemas MUST conform to JSON Schema [JSON-SCHEMA] and SHOULD be compatible with
    the parameters object in OpenAI function-calling format.
card 2.4.3 | SHOULD | When provided, these schemas MUST conform to JSON Schema [JSON-SCHEMA] and SHOULD be compatible
    with the parameters object in OpenAI function-calling format.
card 2.4.4 | is | array of strings
card 2.5 | REQUIRED | Contains two REQUIRED sub-fields and one OPTIONAL sub-field:
card 2.5 | OPTIONAL | Contains two REQUIRED sub-fields and one OPTIONAL sub-field:
card 2.5.1 | MUST | REQUIRED. MUST be one of: http, https, grpc, stdio, or mcp.
card 2.5.2 | REQUIRED | REQUIRED. A URI [RFC3986] identifying the agent's communication endpoint.
card 2.5.2 | MUST | The URI MUST be consistent with the declared protocol (e.g., an https endpoint MUST begin with the
    scheme https://).
card 2.5.3 | OPTIONAL | OPTIONAL. An object describing the authentication scheme required to contact the endpoint.
card 2.5.3 | MUST | The auth.scheme sub-field MUST be one of: none, bearer, api_key, oauth2, or mtls.
card 2.5.3 | is | The default value is none.
card 2.6.1 | MUST | If present, this value MUST be either exactly zero (the agent imposes no energy charge) or greater
    than or equal to the Landauer limit at 300 K:
card 2.6.1 | MUST | A base_cost_joules value in the open interval (0, 2.854e-21) is physically impossible and MUST be
    rejected by conformant validators.
card 2.6.1 | SHOULD | Agents SHOULD set base_cost_joules to a realistic estimate of their per-invocation energy
    consumption.
card 2.6.2 | MUST | If present, MUST be non-negative.
card 2.7 | MUST NOT | Implementations MUST NOT reject an AgentCard because it contains unrecognised metadata keys.
card 2.7 | MUST | MUST be one of: untrusted, basic, established, verified, or banned.
card 2.7 | is | Absence of this field implies untrusted.
card 2.8 | REQUIRED | Each entry contains a REQUIRED goal_id string, an OPTIONAL human-readable description, and an
    OPTIONAL priority value in the range [0, 1] indicating the agent's relative commitment to this goal.
card 2.8 | OPTIONAL | Each entry contains a REQUIRED goal_id string, an OPTIONAL human-readable description, and an
    OPTIONAL priority value in the range [0, 1] indicating the agent's relative commitment to this goal.

# 3 Serialization and media type
card 3 | MUST | An AgentCard MUST be serialised as a JSON object [RFC8259].
card 3 | MUST | The canonical serialisation MUST use UTF-8 character encoding [RFC3629].
card 3 | RECOMMENDED | The RECOMMENDED media type for AgentCard documents is application/agentcard+json (see Section
    9.1).
card 3 | SHOULD | Implementations SHOULD also accept application/json for backward compatibility.
card 3 | MAY | When an AgentCard is embedded in another document (e.g., an MCP tool response), the embedding format MAY
    serialize the AgentCard as a JSON string containing an escaped JSON object.
card 3 | MUST | Implementations MUST accept both embedded-string and direct-object forms.

# 4 Well-known URI discovery
card 4 | SHOULD | An agent that serves its AgentCard at a well-known HTTP(S) endpoint SHOULD publish it at the path
    /.well-known/agentcard relative to the agent's base URL (see Section 9.2).
card 4 | SHOULD | For example, an agent at https://agents.example.com/ SHOULD publish its AgentCard at: GET
    https://agents.example.com/.well-known/agentcard
card 4 | SHOULD | The response SHOULD include a Cache-Control header.
card 4 | RECOMMENDED | AgentCards are relatively stable documents; a max-age of 3600 seconds (one hour) is RECOMMENDED.
card 4 | SHOULD | Validators and registries SHOULD re-fetch at the cache expiry interval.
card 4 | SHOULD | Agents that use the mcp protocol SHOULD also expose their AgentCard via the AgentCard MCP server tools
    defined in [AGENTCARD-MCP].

# 5 Validation rules
card 5 | MUST | A conformant AgentCard validator MUST enforce the following rules.
card 5 | MUST | A document that fails any MUST rule is invalid and MUST be rejected.
card 5 | MUST | 1. agent_id MUST be exactly 26 characters drawn from the Crockford Base32 alphabet
    ([0-9A-HJKMNP-TV-Z]).
card 5 | MUST | 2. version MUST conform to Semantic Versioning 2.0.0.
card 5 | MUST | 3. capabilities MUST contain at least one entry.
card 5 | MUST | 4. Each capabilities[i].id MUST match ^[a-z0-9][a-z0-9._-]*$.
card 5 | MUST | 5. endpoint.protocol MUST be one of: http, https, grpc, stdio, mcp.
card 5 | MUST | 6. endpoint.url MUST be a valid URI [RFC3986].
card 5 | MUST | 7. If pricing.base_cost_joules is present and non-zero, it MUST be greater than or equal to 2.854 ×
    10^{-21} joules (the Landauer limit at 300 K).
card 5 | MUST | 8. If pricing.per_token_joules is present, it MUST be non-negative.
card 5 | MUST | 9. metadata.pacr:trust_tier, if present, MUST be one of: untrusted, basic, established, verified,
    banned.
card 5 | MUST | 10. Validators MUST ignore unknown fields at all levels of the AgentCard hierarchy.
card 5 | MUST NOT | 10. Unknown fields MUST NOT cause validation failure.

# 6 Relation to existing work
card 6.1 | SHOULD | An implementor SHOULD use WIMSE or OAuth for authentication and AgentCard for capability
    advertisement.
card 6.2 | MAY | The two are orthogonal: an MCP server MAY publish an AgentCard; an AgentCard MAY reference an MCP
    endpoint.
card 6.2 | is | The capabilities[].id dot-namespace convention in AgentCard is intentionally compatible with MCP tool
    name fields to minimise conversion overhead.
card 6.3 | SHOULD | Implementors requiring cryptographic agent identity SHOULD embed a DID reference in the AgentCard
    metadata field and sign the AgentCard using the DID's verification method.
card 6.4 | MAY | AgentCard and OpenAPI are complementary; an AgentCard MAY reference a full OpenAPI document via the
    metadata field.

# 8 Security considerations
card 8.1 | MUST NOT | Consumers MUST NOT grant elevated privileges or trust solely on the basis of declared
    capabilities.
card 8.1 | SHOULD | Operational trust SHOULD be established through observed behaviour over time (e.g., via a causal
    return rate as described in Section 2.6).
card 8.2 | MUST | Implementations MUST use a cryptographically secure random number generator for the 80-bit random
    component.
card 8.2 | MUST NOT | Sequential or low-entropy random components permit identity prediction and MUST NOT be used in
    adversarial environments.
card 8.3 | SHOULD | Multi-agent systems that use pricing.base_cost_joules for economic settlement SHOULD independently
    verify claimed costs against observed latency and throughput.
card 8.4 | SHOULD | Consumers SHOULD treat self-declared trust tiers as advisory hints and MUST validate trust tier
    claims against an independent record of the agent's interaction history before acting on them.
card 8.4 | MUST | Consumers SHOULD treat self-declared trust tiers as advisory hints and MUST validate trust tier claims
    against an independent record of the agent's interaction history before acting on them.
card 8.5 | SHOULD | Agents SHOULD serve AgentCards exclusively over TLS (https://).
card 8.5 | SHOULD | Consumers SHOULD reject AgentCards whose endpoint URL scheme differs from the scheme used to fetch
    the AgentCard.
card 8.6 | MUST NOT | Implementors MUST NOT embed user data, operator names, or other PII in the name,
    capabilities[].description, or metadata fields unless the AgentCard is served over a channel with appropriate access
    controls.
"""
)
"""The sentences of the AgentCard draft; those of its 1.1, 6 and 8 that address everybody are here as well."""
