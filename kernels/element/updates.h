// Includes the arithmetic of every rule of kernels/update.h.
//
// A rule has one or several update types. update_of chooses one of them by the rule's options. An
// update type defines:
// - Rule is the type of the rule's options.
// - Scalars holds the scalars that all elements of a segment share.
// - kMoments is the number of moments of an element.
// - reads_moments returns false if the old values of the moments are not used.
// - decay computes Scalars::decay of a segment, on the host.
// - host_scalars returns the other scalars that the host knows.
// - read_scalars sets scalars from device memory and from the segment's learning rate.
// - read_trust_ratio, if the rule has a trust ratio, sets the scalars that depend on it.
// - Decayed is the arithmetic of an element. Undecayed is the arithmetic for Scalars::decay = 0.
#pragma once

#include "kernels/element/adamw.h"
#include "kernels/element/average.h"
#include "kernels/element/lamb.h"
#include "kernels/element/lion.h"
#include "kernels/element/radam.h"
#include "kernels/element/sgd.h"
