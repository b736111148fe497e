"""What an Ascend core's memories ask beyond live ranges: pipes, in-place rules, loops."""
