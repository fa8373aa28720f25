"""One format for everything that is kept: bytes in and out, versions, checksums. Never code."""
