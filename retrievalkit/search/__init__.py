"""`rkit search`: indexes opened, searched and fused, and hits shown to a reader."""
