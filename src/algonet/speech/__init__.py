"""Smooth speech synthesis: phonemes to sound, differentiable in all that a speaker can do."""

from .files import read_wav, wav_bytes, write_wav
from .functional import Voice, mel_envelope, mel_spectrogram, resonance, synthesize, vocal_controls
from .inventory import PHONEMES, Inventory, Phoneme
from .modules import Score, SmoothSynthesizer, Speech
from .reading import Word, read_text

__all__ = [
    "PHONEMES",
    "Inventory",
    "Phoneme",
    "Score",
    "SmoothSynthesizer",
    "Speech",
    "Voice",
    "Word",
    "mel_envelope",
    "mel_spectrogram",
    "read_text",
    "read_wav",
    "resonance",
    "synthesize",
    "vocal_controls",
    "wav_bytes",
    "write_wav",
]
