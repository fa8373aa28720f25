"""One file format for all objects: bytes in and out, versions, checksums. Never code."""
