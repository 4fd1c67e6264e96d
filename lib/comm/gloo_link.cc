// gloo's TCP transport on sockets that are already connected and authenticated.
//
// gloo's own pairs each listen on a port and accept the first connection as the peer. The Pair here
// is given its socket instead, in `adopt`, before gloo's thread uses it. It differs in three more
// ways: writes do not raise SIGPIPE; it rings when a message is complete or the connection has
// ended; an error on gloo's thread ends the connection, not the process.
#include "comm/gloo_link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

namespace tcp = gloo::transport::tcp;

namespace
{

struct Doorbell {
    void (*ring)(void *);
    void *arg;
};

class Pair final : public tcp::Pair
{
  public:
    Pair(tcp::Context *context, tcp::Device *device, int rank, Doorbell doorbell)
        : tcp::Pair(context, device, rank, std::chrono::milliseconds(0)), doorbell_(doorbell)
    {
    }

    ~Pair() override
    {
        std::lock_guard<std::mutex> lock(m_);

        if (state_ != CLOSED)
            changeState(
                CLOSED); // here, because virtual calls of gloo's thread still reach this class
    }

    // Replaces the socket that gloo opened. gloo's thread must be stopped (Gate).
    void adopt(int fd)
    {
        std::lock_guard<std::mutex> lock(m_);

        if (fd_ >= 0)
            ::close(fd_);
        fd_ = fd;
        peer_ = tcp::Address::fromPeerName(fd);
        device_->registerDescriptor(fd_, EPOLLIN, this);
        changeState(CONNECTED);
    }

    bool end()
    {
        std::lock_guard<std::mutex> lock(m_);

        if (state_ == CLOSED)
            return true;
        if (!tx_.empty())
            return false;
        (void)::shutdown(fd_, SHUT_WR);
        return true;
    }

    bool lost() const
    {
        return lost_.load();
    }

    void handleEvents(int events) override
    {
        if (!m_.try_lock()) { /* gloo would retry in a busy loop; let the thread that holds the lock
                                 continue */
            std::this_thread::yield();
            return;
        }
        m_.unlock();
        try {
            tcp::Pair::handleEvents(events);
        } catch (const std::exception &error) {
            std::lock_guard<std::mutex> lock(m_);

            try {
                if (state_ != CLOSED)
                    signalException(error.what());
            } catch (const std::exception &) {
                changeState(CLOSED);
            }
        }
    }

  protected:
    bool read() override
    {
        const bool complete = tcp::Pair::read();

        if (complete)
            doorbell_.ring(doorbell_.arg);
        return complete;
    }

    bool write(tcp::Op &op) override
    {
        gloo::NonOwningPtr<tcp::UnboundBuffer> buffer;
        const auto opcode = op.getOpcode();
        struct iovec parts[2];
        struct msghdr message = {};

        if (state_ == CLOSED)
            return false;
        if (opcode == tcp::Op::SEND_UNBOUND_BUFFER) {
            buffer = gloo::NonOwningPtr<tcp::UnboundBuffer>(op.ubuf);
            if (!buffer)
                return false;
        }
        do {
            int count = 0;
            const ssize_t rest = prepareWrite(op, buffer, parts, count);
            ssize_t written;

            if (rest == 0)
                break;
            message.msg_iov = parts;
            message.msg_iovlen = static_cast<size_t>(count);
            written = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
            if (written < 0 && errno == EINTR)
                continue;
            if (written < 0)
                return false; // EAGAIN, or the connection ended, which gloo's thread detects
            op.nwritten += static_cast<size_t>(written);
        } while (op.nwritten < op.preamble.nbytes);
        writeComplete(op, buffer, opcode);
        doorbell_.ring(doorbell_.arg);
        return true;
    }

    void changeState(state next) noexcept override
    {
        tcp::Pair::changeState(next);
        if (next == CLOSED) {
            lost_.store(true);
            doorbell_.ring(doorbell_.arg);
        }
    }

  private:
    const Doorbell doorbell_;
    std::atomic<bool> lost_{false};
};

class Context final : public tcp::Context
{
  public:
    Context(std::shared_ptr<tcp::Device> device, int own, int world, Doorbell doorbell)
        : tcp::Context(device, own, world), tcp_(device.get()), doorbell_(doorbell)
    {
    }

    std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override
    {
        pairs_[static_cast<size_t>(peer)].reset(new Pair(this, tcp_, peer, doorbell_));
        return pairs_[static_cast<size_t>(peer)];
    }

    Pair *pair(int peer) const
    {
        return static_cast<Pair *>(pairs_[static_cast<size_t>(peer)].get());
    }

  private:
    tcp::Device *const tcp_; // owned by the base class
    const Doorbell doorbell_;
};

// Blocks gloo's thread inside handleEvents until open(). Must outlive that thread.
class Gate final : public tcp::Handler
{
  public:
    explicit Gate(tcp::Device *device) : device_(device), fd_(::eventfd(1, EFD_CLOEXEC))
    {
        std::unique_lock<std::mutex> lock(m_);

        device_->registerDescriptor(fd_, EPOLLIN, this);
        moved_.wait(lock, [this] { return entered_; });
    }

    ~Gate() override
    {
        ::close(fd_);
    }

    void open()
    {
        {
            std::lock_guard<std::mutex> lock(m_);

            open_ = true;
            moved_.notify_all();
        }
        device_->unregisterDescriptor(fd_, this);
    }

    void handleEvents(int) override
    {
        std::unique_lock<std::mutex> lock(m_);

        entered_ = true;
        moved_.notify_all();
        moved_.wait(lock, [this] { return open_; });
    }

  private:
    tcp::Device *const device_;
    const int fd_;
    std::mutex m_;
    std::condition_variable moved_;
    bool entered_ = false, open_ = false;
};

struct Opener {
    Gate *gate;
    ~Opener()
    {
        gate->open();
    }
};

// Creates a gloo device. Its thread blocks all signals.
std::shared_ptr<tcp::Device> make_device()
{
    sigset_t all, before;
    std::shared_ptr<tcp::Device> device;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        device = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice("127.0.0.1"));
    } catch (...) {
        (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return device;
}

// Disables Nagle's delay; makes the kernel detect a peer node that does not respond within 30
// seconds.
void prepare_socket(int fd)
{
    const int on = 1, idle_s = 10, interval_s = 5, probes = 3, unanswered_ms = 30000;

    (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

} // namespace

struct hd_gloo_link {
    std::unique_ptr<Gate> gate;       // destroyed last
    std::shared_ptr<Context> context; // owns the device and its thread
};

struct hd_gloo_ticket final : public tcp::UnboundBuffer {
    hd_gloo_ticket(const std::shared_ptr<Context> &context, void *base, size_t size_bytes)
        : tcp::UnboundBuffer(context, base, size_bytes), pairs(context.get())
    {
    }

    enum hd_gloo_progress take(int &completions)
    {
        std::lock_guard<std::mutex> lock(m_);

        if (completions > 0) {
            completions--;
            return HD_GLOO_DONE;
        }
        return ex_ ? HD_GLOO_LOST : HD_GLOO_PENDING;
    }

    enum hd_gloo_progress take_sent()
    {
        return take(sendCompletions_);
    }
    enum hd_gloo_progress take_received()
    {
        return take(recvCompletions_);
    }

    Context *const pairs; // owned by the base class
};

enum hd_status hd_gloo_link_open(const int *fds, int rank, int world, void (*ring)(void *arg),
                                 void *arg, struct hd_gloo_link **ret_link)
{
    int adopted = 0;

    try {
        std::unique_ptr<hd_gloo_link> link(new hd_gloo_link);
        const auto device = make_device();

        link->gate.reset(new Gate(device.get()));
        const Opener opener{link->gate.get()};

        link->context = std::make_shared<Context>(device, rank, world, Doorbell{ring, arg});
        for (; adopted < world; adopted++) {
            if (adopted == rank)
                continue;
            prepare_socket(fds[adopted]);
            (void)link->context->createPair(adopted);
            link->context->pair(adopted)->adopt(fds[adopted]);
        }
        *ret_link = link.release();
        return HD_OK;
    } catch (const std::exception &error) {
        for (; adopted < world; adopted++) {
            if (adopted != rank)
                (void)::close(fds[adopted]);
        }
        return hd_err(HD_IO, "gloo: cannot create its transport: %s", error.what());
    }
}

bool hd_gloo_link_end(struct hd_gloo_link *link, int peer)
{
    return link->context->pair(peer)->end();
}

bool hd_gloo_link_lost(const struct hd_gloo_link *link, int peer)
{
    return link->context->pair(peer)->lost();
}

void hd_gloo_link_close(struct hd_gloo_link *link)
{
    delete link;
}

enum hd_status hd_gloo_ticket_new(struct hd_gloo_link *link, void *base, size_t size_bytes,
                                  struct hd_gloo_ticket **ret_ticket)
{
    try {
        *ret_ticket = new hd_gloo_ticket(link->context, base, size_bytes);
        return HD_OK;
    } catch (const std::exception &error) {
        return hd_err(HD_NO_MEMORY, "gloo: cannot create a buffer: %s", error.what());
    }
}

void hd_gloo_ticket_free(struct hd_gloo_ticket *ticket)
{
    delete ticket;
}

bool hd_gloo_send(struct hd_gloo_ticket *ticket, int peer, uint64_t slot, size_t offset,
                  size_t size_bytes)
{
    try {
        static_cast<gloo::transport::Pair *>(ticket->pairs->pair(peer))
            ->send(ticket, slot, offset, size_bytes);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

bool hd_gloo_recv(struct hd_gloo_ticket *ticket, int peer, uint64_t slot, size_t offset,
                  size_t size_bytes)
{
    try {
        static_cast<gloo::transport::Pair *>(ticket->pairs->pair(peer))
            ->recv(ticket, slot, offset, size_bytes);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

enum hd_gloo_progress hd_gloo_sent(struct hd_gloo_ticket *ticket)
{
    return ticket->take_sent();
}

enum hd_gloo_progress hd_gloo_received(struct hd_gloo_ticket *ticket)
{
    return ticket->take_received();
}
