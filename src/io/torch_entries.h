// Finds the weights among the tensors of a pickle, and their names.
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
  std::vector<std::string> notes;  // entries that were left out
};

// Returns the weights of a state_dict, of a state_dict within a training script's dict, or of a
// TorchScript module.
// Errors: IoError kCorruptData with the class of any other root, and with the name of a tensor that
//   cannot be read.
TorchEntries find_entries(const PickleValue& root, const std::string& file);

}  // namespace fsdp
