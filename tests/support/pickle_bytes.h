// Writes pickles as torch.save does, byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

inline std::string pickled_text(std::string_view word) {
  return std::string("X") + static_cast<char>(word.size()) + std::string(3, '\0') +
         std::string(word);
}

inline std::string pickled_number(int32_t value) {
  std::string bytes = "J";
  for (int i = 0; i < 4; ++i) {
    bytes += static_cast<char>(static_cast<uint32_t>(value) >> (8 * i) & 0xff);
  }
  return bytes;
}

// A view of a record that contains `numel` floats.
struct PickledView {
  int numel = 6;
  int offset = 0;
  std::vector<int> shape{2, 3};
  std::vector<int> strides{3, 1};
  std::string record = "0";
};

inline std::string pickled_tensor(const PickledView& view) {
  const auto tuple = [](const std::vector<int>& values) {
    std::string bytes = "(";
    for (const int value : values) bytes += pickled_number(value);
    return bytes + "t";
  };
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled_text("storage") +
         "ctorch\nFloatStorage\n" + pickled_text(view.record) + pickled_text("cpu") +
         pickled_number(view.numel) + "tQ" + pickled_number(view.offset) + tuple(view.shape) +
         tuple(view.strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

// Returns the pickle of the dict {'w': view}.
inline std::string pickled_state_dict(const PickledView& view) {
  return "\x80\x02}" + pickled_text("w") + pickled_tensor(view) + "s.";
}

}  // namespace fsdp
