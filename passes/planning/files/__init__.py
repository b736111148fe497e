"""Problems and plans in files."""
