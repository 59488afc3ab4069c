// Includes the arithmetic of every rule of kernels/update.h.
//
// A rule has one update or several. update_of chooses one by the rule's options. An update defines:
//   Rule, Scalars         the rule; the scalars that all elements of a segment share
//   kMoments              number of moments of an element
//   reads_moments         false if the moments' old values are not used
//   decay                 computes Scalars::decay of a segment, on the host
//   host_scalars          returns the other scalars that the host knows
//   read_scalars          sets scalars from device memory and from the segment's learning rate
//   Decayed, Undecayed    the element's arithmetic; Undecayed if Scalars::decay is 0
#pragma once

#include "kernels/element/adamw.h"
#include "kernels/element/sgd.h"
