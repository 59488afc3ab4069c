// Reads the pickles of torch.save and torch::save: containers, texts, numbers and tensors. Nothing
// that a file names is ever called: an object of another class is read over, and has its name.
//
// Not LibTorch's Unpickler: it makes None of an OrderedDict, which every state_dict is, and
// believes what a file says of counts and places. This one checks each byte, and is tested without
// LibTorch.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

// A view of the numbers in a record of the archive.
struct PickledTensor {
  StoredDType dtype = StoredDType::kF32;
  std::string record;        // its key
  int64_t record_bytes = 0;  // as the pickle says
  int64_t offset = 0;        // in elements, as the strides
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

struct PickleValue {
  enum class Kind : uint8_t {
    kOther,    // None, numbers that are not whole or beyond 64 bits: of no meaning for weights
    kInteger,  // and booleans
    kText,
    kSequence,  // list, tuple
    kDict,
    kObject,   // of a class of TorchScript
    kGlobal,   // a class or a function by name
    kStorage,  // of which tensors are made
    kTensor,
    kUnread,        // an object of another class, or what a function would make
    kUnreadTensor,  // a tensor or storage of which the engine has no kind
  };
  Kind kind = Kind::kOther;
  int64_t integer = 0;
  // kText; of kGlobal, kObject and kUnread the name, "collections.OrderedDict"; of kUnreadTensor
  // what is the matter with it, "is made by '…'".
  std::string text;
  // Of kSequence; of kDict keys and values by turns; of kObject the dict of its attributes, if any.
  std::vector<const PickleValue*> items;
  std::unique_ptr<PickledTensor> tensor;  // of kTensor; and of kStorage, without a shape
};

// A parsed pickle; values may name each other, and themselves.
struct Pickle {
  std::deque<PickleValue> values;
  const PickleValue* root = nullptr;
};

// Memory in proportion to the bytes. `file` is used for messages only.
// Errors: IoError kCorruptData: with the byte for what no torch.save writes; by name for what runs
//   code wherever it stands (os.system, eval): no file of weights names it.
Pickle parse_pickle(std::span<const std::byte> bytes, const std::string& file);

}  // namespace fsdp
