// Which tensors of a pickle are weights, by their names.
#pragma once

#include <string>
#include <vector>

#include "io/pickle.h"

namespace fsdp {

struct TorchEntries {
  struct Entry {
    std::string name;
    const PickledTensor* tensor = nullptr;  // the pickle's
  };
  std::vector<Entry> tensors;
  std::vector<std::string> notes;  // what was left out, once
};

// Of a state_dict, of one within a training script's dict, or of a module of TorchScript.
// Errors: IoError kCorruptData for another root, naming it, and with its name for a tensor that
//   cannot be read.
TorchEntries find_entries(const PickleValue& root, const std::string& file);

}  // namespace fsdp
