"""Parts a method composes: plans, keeps, views, probes, credit, terms and what they are made of.

Every part is a frozen dataclass whose ``__call__`` hands its fields to a pure function.
"""
