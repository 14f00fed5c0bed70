"""Take the pictures in docs/images with Chromium: `make pictures`."""
