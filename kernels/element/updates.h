// The arithmetic of every rule of kernels/update.h.
//
// A rule has one update, or several between which its options choose (update_of). Each says
//   Rule, Scalars         the rule, and what all elements of a segment have in common
//   kMoments              how many it keeps of an element
//   reads_moments         whether what they hold counts
//   decay                 Scalars::decay of a segment, by the host
//   host_scalars          what else the host knows of the scalars
//   read_scalars          what is in device memory, or depends on the segment's rate
//   Decayed, Undecayed    the element's arithmetic; the second where Scalars::decay is 0
#pragma once

#include "kernels/element/adamw.h"
#include "kernels/element/sgd.h"
