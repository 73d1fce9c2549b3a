"""What the figures compute: pure functions of plain settings, run as pieces. They return what JSON can
hold."""
