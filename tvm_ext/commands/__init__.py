# SPDX-License-Identifier: Apache-2.0
"""The command ``tvm-ext plan``, and the options that several commands have.

The commands ``compare`` and ``map`` stand beside what they show, in ``comparison`` and ``map``.
"""
