"""What a plan costs in time, on a machine whose pipelines run side by side."""
