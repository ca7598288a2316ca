"""The main job in small."""
