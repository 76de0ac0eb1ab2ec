"""Cameras in, crops out: RTSP readers, person detection, tracking, best shot, publisher."""
