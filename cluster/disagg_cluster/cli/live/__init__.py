"""Commands that show what goes on as it goes on."""
