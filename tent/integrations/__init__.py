"""tent inside serving stacks, by their own plug-in interfaces.

`tent.integrations.vllm` has connectors for vLLM, `tent.integrations.sglang` a transfer backend for SGLang,
`tent.integrations.lmcache` a channel for LMCache's servers, and `tent.integrations.ray` a tensor transport for Ray.

Importing this package imports no stack and nothing of the engine.
"""
