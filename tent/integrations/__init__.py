"""tent inside serving stacks, by their own plug-in interfaces: `tent.integrations.vllm` has connectors for vLLM,
and `tent.integrations.lmcache` a channel for LMCache's servers.

Importing this package imports no stack and nothing of the engine.
"""
