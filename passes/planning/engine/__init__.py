"""What planners are made of: blocks, gaps, orders, and the search over placements."""
