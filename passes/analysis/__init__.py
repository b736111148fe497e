"""Who is live when, and how big: facts read off TVM IR."""
