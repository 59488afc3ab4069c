"""Computes the perfect schedule of a step, as docs/performance.md defines it."""


def overlapped(forward, backward, wire, prefetch=1):
    """Returns the time of a step whose units take `forward` and `backward`, and each gather and reduction `wire`, as
    in docs/performance.md. A unit computes when the preceding unit has computed and its own parameters are
    gathered. Its gather begins after the preceding gather and when the unit `prefetch` positions earlier begins.
    Its reduction begins after the preceding reduction and when the unit has computed. Gradients have two slots: a
    unit waits for the last reduction but one."""
    end = 0
    for compute, reduces in ((forward, False), (backward[::-1], True)):
        done, gathered, reduced = [end] * (prefetch + 1), end, [end, end]
        for time in compute:
            gathered = max(gathered, done[-prefetch - 1]) + wire
            done.append(max(done[-1], gathered, reduced[-2]) + time)
            if reduces:
                reduced.append(max(done[-1], reduced[-1]) + wire)
        end = max(done[-1], reduced[-1])
    return end


def overlapped_ahead(forward, backward, wire, prefetch=1):
    """Returns the same time if the host is ahead, as on a GPU: forward and backward are one sequence of uses, and
    backward's first gathers hide behind forward's end."""
    done, gathered, reduced = [0] * (prefetch + 1), 0, [0, 0]
    uses = [(time, False) for time in forward] + [(time, True) for time in backward[::-1]]
    for time, reduces in uses:
        gathered = max(gathered, done[-prefetch - 1]) + wire
        done.append(max(done[-1], gathered, reduced[-2] if reduces else 0) + time)
        if reduces:
            reduced.append(max(done[-1], reduced[-1]) + wire)
    return reduced[-1]
