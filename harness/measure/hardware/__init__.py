"""What is measured of the hardware itself: its fabric, its slow nodes, its bits."""
