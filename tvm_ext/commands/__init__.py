# SPDX-License-Identifier: Apache-2.0
"""The command ``tvm-ext plan``, and options of it and of those in ``comparison`` and ``map``."""
