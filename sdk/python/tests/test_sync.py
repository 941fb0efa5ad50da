from ._sync_suite import Cut, Suite  # noqa: F401  # unittest finds them here
