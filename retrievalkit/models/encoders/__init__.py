"""Encoders turn texts into token states."""
