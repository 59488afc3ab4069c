"""Spells quantities for tables and pictures, with one function for each kind, and with three digits: more is noise."""


def spell(value, digits=3):
    """Returns 0, 1.07, 62.3, 514, 1,985."""
    if value == 0:
        return "0"
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(digits - whole, 0)}f}"


def spell_bytes(size):
    """Returns 0 B, 96.0 KiB, 514 MiB, 1.94 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} B" if unit == "B" else f"{spell(size)} {unit}"


def spell_round_bytes(size):
    """Spells powers of two for an axis: 64 MiB, 1 GiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size:g} B"


def spell_mib(size):
    """Spells sizes for columns in MiB, without the unit."""
    return spell(size / 2**20)


def spell_count(count):
    """Spells numbers of parameters: 11.2 M, 334 M, 1.27 billion."""
    return f"{spell(count / 1e9)} billion" if count >= 1e9 else f"{spell(count / 1e6)} M"


def spell_ms(milliseconds):
    return spell(milliseconds)


def spell_percent(share):
    """Spells a share in a message: 62 %."""
    return f"{100 * share:.0f} %".replace("-", "−")


def spell_deviation(ratio):
    """Spells the deviation of a ratio from 1, in percent: +0.31 %, 0 %."""
    percent = 100 * (ratio - 1)
    return "0 %" if abs(percent) < 0.005 else f"{percent:+.2f} %".replace("-", "−")


def spell_factor(factor):
    """Spells a multiple: 0.55×."""
    return f"{factor:.2f}×"
