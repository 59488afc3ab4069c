#include "fsdp/mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "comm/local/local_communicator.h"
#include "comm/mesh_state.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp {
namespace {

constexpr std::array kChannelKinds{Channel::kGather, Channel::kReduce, Channel::kControl};

std::string lines_as_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

// The texts of all ranks, of any lengths.
std::vector<std::string> exchange_texts(Communicator& communicator, std::string_view text,
                                        std::string_view label) {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "exchange");
  const int size = communicator.size();
  const auto mine = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(size);
  const CollectivePart length_part{
      .send = &mine, .recv = lengths.data(), .numel = 1, .dtype = DType::kInt64};
  communicator.all_gather({&length_part, 1}, {.label = label}, *stream);

  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded(text);
  padded.resize(longest);
  std::string all(longest * size, '\0');
  const CollectivePart text_part{
      .send = padded.data(), .recv = all.data(), .numel = longest, .dtype = DType::kUInt8};
  communicator.all_gather({&text_part, 1}, {.label = label}, *stream);

  std::vector<std::string> texts;
  for (int rank = 0; rank < size; ++rank) {
    texts.push_back(all.substr(rank * longest, lengths[rank]));
  }
  return texts;
}

// The first line in which two texts differ, and what each has there.
struct Difference {
  int line;
  std::string first, second;
};

std::optional<Difference> first_difference(std::string_view a, std::string_view b) {
  const auto next_line = [](std::string_view& rest) {
    if (rest.empty()) return std::string("(nothing)");
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return line;
  };
  for (int line = 1; !a.empty() || !b.empty(); ++line) {
    std::string in_a = next_line(a);
    std::string in_b = next_line(b);
    if (in_a != in_b) return Difference{line, std::move(in_a), std::move(in_b)};
  }
  return std::nullopt;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Mesh::Mesh(std::shared_ptr<State> state) : state_(std::move(state)) {
  state_->alone =
      std::make_unique<LocalCommunicator>(make_local_members(1, {}).front(), Channel::kGather);
}

Mesh Mesh::single() { return local(1).front(); }

std::vector<Mesh> Mesh::local(int world_size, MeshOptions options) {
  if (world_size < 1) {
    throw InvalidArgument({.what = fmt::format("a mesh of {} ranks", world_size),
                           .where = {},
                           .cause = {},
                           .hint = "one rank is the least"});
  }
  if (options.ablate_communication) {
    throw InvalidArgument({.what = "ablate_communication with ranks that are threads",
                           .where = {},
                           .cause = "ranks of one process do not run apart from each other",
                           .hint = "start processes and use Mesh::from_env"});
  }
  std::vector<Mesh> meshes;
  for (auto& job : make_local_members(world_size, options)) {
    auto state = std::make_shared<State>();
    state->job = job;
    state->local_rank = job->rank();
    state->host = host_name();
    state->on_warning = options.on_warning;
    for (const Channel kind : kChannelKinds) {
      state->channels[static_cast<size_t>(kind)] = std::make_unique<LocalCommunicator>(job, kind);
    }
    meshes.push_back(Mesh(std::move(state)));
  }
  return meshes;
}

int Mesh::rank() const { return state_->job->rank(); }
int Mesh::world_size() const { return state_->job->size(); }
int Mesh::local_rank() const { return state_->local_rank; }
const std::string& Mesh::host() const { return state_->host; }
int Mesh::size(Axis axis) const { return axis == Axis::kShard ? world_size() : 1; }

Communicator& Mesh::gather_communicator(Axis axis) const {
  return axis == Axis::kShard ? *state_->channels[static_cast<size_t>(Channel::kGather)]
                              : *state_->alone;
}

Communicator& Mesh::reduce_communicator(Axis axis) const {
  return axis == Axis::kShard ? *state_->channels[static_cast<size_t>(Channel::kReduce)]
                              : *state_->alone;
}

Communicator& Mesh::control_communicator() const {
  return *state_->channels[static_cast<size_t>(Channel::kControl)];
}

MeshStreams Mesh::streams(CpuStreams kind) const {
  const std::lock_guard lock(state_->streams_mutex);
  std::shared_ptr<OwnStreams> own = state_->streams.lock();
  if (!own) {
    own = std::make_shared<OwnStreams>(
        OwnStreams{make_cpu_stream(kind, "fsdp-gather"), make_cpu_stream(kind, "fsdp-reduce")});
    state_->streams = own;
  }
  if (own->gather->is_inline() != (kind == CpuStreams::kInline)) {
    throw InvalidArgument({.what = "engines of one mesh ask for inline and for threaded streams",
                           .where = "Options::cpu_streams",
                           .cause = "their collectives travel on the mesh's two streams",
                           .hint = "give all engines of a mesh the same cpu_streams, or let the "
                                   "other engine go first"});
  }
  return {.gather = {own, own->gather.get()}, .reduce = {own, own->reduce.get()}};
}

CollectiveTag Mesh::next_tag(Operation operation, int64_t numel, std::string_view label) const {
  return state_->order.next(operation, numel, label);
}

void Mesh::note(std::string_view text) const { state_->order.note(text); }

uint64_t Mesh::order_hash() const { return state_->order.hash(); }
std::vector<std::string> Mesh::recent_collectives() const { return state_->order.recent(); }
void Mesh::record_all_collectives() const { state_->order.keep_all(); }

void Mesh::agree(std::string_view what, const std::vector<std::string>& lines) const {
  const auto texts = exchange(what, lines_as_text(lines));
  for (int other = 1; other < world_size(); ++other) {
    const auto difference = first_difference(texts[0], texts[other]);
    if (!difference) continue;
    // Kept as the job's first failure: a rank that is still in the exchange gets the same text.
    state_->job->fail(
        {.rank = -1,
         .code = ExitCode::kConfiguration,
         .text = {.what = fmt::format("ranks do not agree on the {}: rank 0 has "
                                      "'{}', rank {} has '{}'",
                                      what, difference->first, other, difference->second),
                  .where = fmt::format("{}, line {}", what, difference->line),
                  .cause = {},
                  .hint = "start all ranks with the same program, options and "
                          "files"}});
    state_->job->throw_failure({});
  }
}

std::vector<std::string> Mesh::exchange(std::string_view what, std::string_view text) const {
  return exchange_texts(control_communicator(), text, what);
}

void Mesh::warn(const ErrorText& warning) const {
  if (state_->on_warning) state_->on_warning(warning);
}

void Mesh::abort(std::string_view cause) const noexcept { state_->job->abort(cause); }

std::weak_ptr<void>& Mesh::engine_state() const { return state_->engine_state; }

}  // namespace fsdp
