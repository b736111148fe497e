"""Compiler passes: analysis, planning and rewriting of memory."""
