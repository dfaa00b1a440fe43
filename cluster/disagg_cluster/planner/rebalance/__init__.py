"""Decides which engine should change its role and when that pays, and accounts for the gain."""
