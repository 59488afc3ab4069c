// The rates of a machine, from which a plan computes the time of a step (PlanRequest::rates). Rates
// are in a JSON file:
//
//   {"format": "fsdp rates 1", "machine": "h100", "source": "…",
//    "device": {"copy_gbps": 2600, "host_ns_per_call": 0},
//    "products": {"bfloat16": [[1024, 4.1e14], [4096, 5.6e14]]},
//    "attention": {"bfloat16": 3.2e14}, "peak": {"bfloat16": 9.894e14},
//    "link": [{"scope": "host", "gbps": 360, "base_ns": 8400, "step_ns": 3400},
//             {"scope": "net", "gbps": 350, "step_ns": 14000}],
//    "contention": 0.5,
//    "residuals": [{"rows": "8 GPUs", "count": 18, "median": 0.02, "p90": 0.08, "worst": 0.1}]}
//
// If the rates come from a few published steps, the file also has "basis": "thin" and "rows": N.
// A file may also have "origins": {"products": "published", "copy": "assumed"}.
//
// A gbps is 10^9 bytes per second. All rates are those of one rank while all ranks of its host
// work, except those of the scope net. `fsdp-rates` measures this machine and adds these fields:
//
//   "cpu": {"cores": 2, "ranks": 2, "threads": 1}, "kernels": {"update": 11.5},
//   "operators": {"aten::mm(Float[128,768] Float[768,768])": 1410000}
//
// Its "device" may have "host_ns_per_kernel", and its link of the scope host may have the fields
// "core", "gathers" and "reductions": [[65536, 21000], [1048576, 180000]].
#pragma once

#include <fsdp/scalar_type.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// The rate of a matrix product whose smallest side is `side`.
struct ProductRate {
  double side = 0;
  double flops = 0;  // operations per second; a multiplication and an addition are two
  bool operator==(const ProductRate&) const = default;
};

// The rates of one element type.
struct TypeRates {
  c10::ScalarType dtype{};
  // In ascending order of the sides. Between two sides the rate is interpolated (linear in the
  // logarithms); outside, the nearest rate is used.
  std::vector<ProductRate> products;
  double attention = 0;  // operations per second of scaled_dot_product_attention; 0: unknown
  double peak = 0;       // operations per second that the vendor states, for MFU; 0: unknown
  bool operator==(const TypeRates&) const = default;
};

// The measured time of a collective in which each rank sends `bytes` bytes.
struct SizeTime {
  double bytes = 0;
  double ns = 0;
  bool operator==(const SizeTime&) const = default;
};

// The link over which collectives run.
struct LinkRates {
  // Scope host: bus bandwidth of a rank between the ranks of a host (busbw of nccl-tests), in bytes
  // per second. Scope net: bus bandwidth of a ring over all ranks of several hosts, which is the
  // number of bytes that all ranks of a host send to other hosts per second.
  double bytes = 0;
  double step_ns = 0;  // latency of each step of a ring over this link
  // Scope host, measured between the CPU's ranks, in ascending order of the bytes. If they are set,
  // they replace all other rates of collectives between ranks of one host. Between two sizes the
  // time is interpolated. Above the largest size it grows in proportion, below the smallest it is
  // constant. An all_reduce is a reduction and a gather.
  std::vector<SizeTime> gathers, reductions;
  double core = 1;  // part of these times in which the rank uses a core
  bool operator==(const LinkRates&) const = default;
};

// The processors of a host whose ranks compute on the CPU.
struct CpuRates {
  int cores = 0;    // of the host; 0: the rates are not those of a CPU
  int ranks = 0;    // ranks that worked at the same time when the rates were measured
  int threads = 0;  // threads of LibTorch in each of these ranks
  bool operator==(const CpuRates&) const = default;
};

// The differences between predicted and measured step times: predicted / measured - 1.
struct RatesResidual {
  std::string rows;  // describes the measured steps
  int64_t count = 0;
  double median = 0, p90 = 0, worst = 0;  // of the absolute differences
  bool operator==(const RatesResidual&) const = default;
};

// The rates of a rank's device, its host and its links.
struct Rates {
  std::string machine;  // a name for messages
  std::string source;   // a sentence about the origin of the rates
  double copy = 0;      // bytes per second that kernels read and write in device memory
  // Time of the rank's thread for each operator of LibTorch and for each kernel, copy or collective
  // of the engine.
  double host_ns_per_call = 0;
  // If it is not 0, it replaces host_ns_per_call for kernels, copies and collectives.
  double host_ns_per_kernel = 0;
  // With CPU offload on a GPU: bytes per second of the host's kernels, and of a copy between host
  // and device. 0: unknown; a plan with offload on a GPU then has no time.
  double host_copy = 0, transfer = 0;
  std::vector<TypeRates> types;
  double base_ns = 0;  // latency of a collective in addition to its steps
  LinkRates host;      // between ranks of a host; bytes 0: unknown
  LinkRates net;       // between hosts; bytes 0: unknown
  // While a collective runs, compute takes 1 + contention times as long.
  double contention = 0;
  CpuRates cpu;
  // Bytes per second that kernels of the engine read and write, by the name in
  // kernels/kernel_table.h. A kernel that is not listed has the rate `copy`.
  std::map<std::string, double> kernels;
  // Measured nanoseconds of operators (PlayedOperators::prices). They are used instead of the rates
  // above. On the CPU they include the time of the rank's thread.
  std::map<std::string, double> operators;
  std::vector<RatesResidual> residuals;
  // Above 0: the basis is thin. The rates come from this number of published steps, which are too
  // few to state the errors of predictions.
  int64_t thin_rows = 0;
  // The origin of rates, by their name: "products", "attention", "copy", "host" and "net" (links),
  // "latency", "contention". An origin is "measured", "played" (each operator ran alone),
  // "published" or "assumed". Names that are missing have an unknown origin.
  std::map<std::string, std::string> origins;
  bool operator==(const Rates&) const = default;

  // Returns the rates of a type, or null.
  const TypeRates* find(c10::ScalarType dtype) const;
};

// Parses the text of a rates file. `file` is a name for messages.
// Errors: IoError (65) if the text is not JSON of this format, if a field is missing, unknown or of
//   another type, or if a rate is not positive.
Rates parse_rates(std::string_view text, const std::string& file);
// Errors: those of parse_rates; IoError (74) if the file cannot be read.
Rates read_rates(const std::filesystem::path& file);
// Sets `net` from the connections that `fsdp-doctor --nnodes H --out REPORT` measured: the lowest
// rate of a connection and the highest latency, because the slowest connection limits a ring.
// Errors: IoError (65) if the file is no such report, if a connection failed or was not measured,
//   or if `rates.host` is unknown; IoError (74) if the file cannot be read.
void set_link_of_hosts(Rates& rates, const std::filesystem::path& report);
// Returns the text of a rates file. parse_rates of this text returns equal rates.
std::string to_json(const Rates& rates);

}  // namespace fsdp
