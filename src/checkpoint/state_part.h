// StatePart: the elements of one tensor of a training that this rank holds.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "shard/main_state_hold.h"

namespace fsdp {

// A tensor is, for example, a weight, a moment of an optimizer, a buffer, or the states of all
// ranks' random generators (one row per rank). Its dtype and shape are those of the checkpoint;
// they need not be a parameter's. Every rank lists the same tensors in the same order, also those
// of which it holds no element.
struct StatePart {
  std::string name;                      // equal on every rank, "model/weight/layers.0.mix.weight"
  std::vector<std::string> other_names;  // of a tied parameter
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;    // of the whole tensor
  std::vector<int64_t> strides;  // its memory order; dense
  // The tensor may be cut between ranks only at multiples of this number of elements. An optimizer
  // with one scale per 256 elements has granules of 256, and a vector of one value per row has
  // granules of 1.
  int64_t granule = 1;

  // This rank holds the elements [begin, begin + numel) in memory order. Both ends are multiples of
  // the granule or the tensor's end.
  int64_t begin = 0;
  int64_t numel = 0;
  // The same elements are held by `holders` ranks, of which this is number `holder`. Each of them
  // writes an equal part.
  int64_t holder = 0;
  int64_t holders = 1;

  std::byte* data = nullptr;  // of element `begin`
  // Loading writes `data` on this stream. Null: host memory that is written directly.
  Stream* stream = nullptr;
  bool is_on_device = false;  // true: saving reads `data` on the stream, too
  // The engine's hold on its main state, if `data` is main state. Null: other memory of the host.
  MainStateHold* hold = nullptr;
  // If true, `data` is main state that code may write without a wait for `hold`.
  bool has_other_writers = false;
  // If true, an infinity or NaN marks the checkpoint as not finite. False for values that may be
  // infinite.
  bool must_be_finite = false;
};

}  // namespace fsdp
