"""What one engine did when: by its step records or by windows between two of its pages."""
