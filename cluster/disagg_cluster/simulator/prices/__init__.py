"""What steps cost by measured tables: their format, reading between points, those shipped."""
