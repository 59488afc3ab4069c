#include "comm/job/text_exchange.h"

#include <algorithm>

#include "runtime/device.h"

namespace fsdp {

std::vector<std::string> exchange_texts(Communicator& communicator, std::string_view text,
                                        const CollectiveTag& tag) {
  Stream& stream = cpu_device().compute_stream();
  const int size = communicator.size();
  const auto mine = static_cast<int64_t>(text.size());
  // An all_gather needs equal counts, so the ranks first exchange the lengths. Then they pad all
  // texts to the longest length and exchange the texts.
  std::vector<int64_t> lengths(size);
  const CollectivePart length_part{
      .send = &mine, .recv = lengths.data(), .numel = 1, .dtype = DType::kInt64};
  communicator.all_gather({&length_part, 1}, tag, stream);

  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded(text);
  padded.resize(longest);
  std::string all(longest * size, '\0');
  const CollectivePart text_part{
      .send = padded.data(), .recv = all.data(), .numel = longest, .dtype = DType::kUInt8};
  // Without a place in the collective sequence: the exchange of lengths has used the tag's place.
  communicator.all_gather({&text_part, 1}, {.label = tag.label}, stream);

  std::vector<std::string> texts;
  for (int rank = 0; rank < size; ++rank) {
    texts.push_back(all.substr(rank * longest, lengths[rank]));
  }
  return texts;
}

}  // namespace fsdp
