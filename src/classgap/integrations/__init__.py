"""Adapters for the tools people already use, one module per tool: ``from classgap.integrations.lightning import AuditCallback``.

Nothing is imported here: a module imports its library, and only that one, when it is imported itself.
"""
